// Package jsoncut takes members out of JSON objects, and elements out of arrays,
// without going through their values: what is long is then decoded once, by
// whoever wants it, and not once more for each layer around it.
//
// It finds where values end and checks nothing else. What it returns is good JSON
// only when what it was given is, so all of it goes to a decoder.
package jsoncut

import "bytes"

// Member takes the member of that name out of an object. It returns the object
// without it, and its value. The value is nil, and the object as it was, when
// there is not exactly one such member, when the name is written with escapes,
// or when this is no object at all: a decoder then has the last word on all of
// it.
func Member(object []byte, name string) (rest, value []byte) {
	i := space(object, 0)
	if i == len(object) || object[i] != '{' {
		return object, nil
	}
	// from and to are what is cut out: the member, with one of its commas.
	from, to := 0, 0
	for comma := i; ; {
		begin := space(object, i+1)
		nameEnd := end(object, begin)
		if nameEnd < 0 || object[begin] != '"' {
			return object, nil // it is empty, or broken
		}
		colon := space(object, nameEnd)
		if colon == len(object) || object[colon] != ':' {
			return object, nil
		}
		at := space(object, colon+1)
		valueEnd := end(object, at)
		if valueEnd <= at {
			return object, nil
		}
		i = space(object, valueEnd)
		if i == len(object) || (object[i] != ',' && object[i] != '}') {
			return object, nil
		}
		if string(object[begin+1:nameEnd-1]) == name {
			if value != nil {
				return object, nil
			}
			value = object[at:valueEnd:valueEnd]
			if from, to = begin, valueEnd; object[i] == ',' {
				to = i + 1
			} else if object[comma] == ',' {
				from = comma
			}
		}
		if object[i] == '}' {
			break
		}
		comma = i
	}
	if value == nil || space(object, i+1) != len(object) {
		return object, nil
	}
	return append(append(make([]byte, 0, len(object)-(to-from)), object[:from]...), object[to:]...), value
}

// Elements returns the elements of an array; false when this is none.
func Elements(array []byte) ([][]byte, bool) {
	i := space(array, 0)
	if i == len(array) || array[i] != '[' {
		return nil, false
	}
	elements := [][]byte{}
	if first := space(array, i+1); first < len(array) && array[first] == ']' {
		return elements, space(array, first+1) == len(array)
	}
	for {
		begin := space(array, i+1)
		stop := end(array, begin)
		if stop <= begin {
			return nil, false
		}
		elements = append(elements, array[begin:stop:stop])
		if i = space(array, stop); i == len(array) || (array[i] != ',' && array[i] != ']') {
			return nil, false
		}
		if array[i] == ']' {
			return elements, space(array, i+1) == len(array)
		}
	}
}

// space returns where the white space that begins at i ends.
func space(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\t' || data[i] == '\n' || data[i] == '\r') {
		i++
	}
	return i
}

// end returns where the value that begins at i ends; -1 when it does not.
func end(data []byte, i int) int {
	for depth := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			stop := stringEnd(data, i)
			if stop < 0 || depth == 0 {
				return stop
			}
			i = stop - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // of what stands around a number or a word
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ':', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
		}
	}
	return -1
}

// stringEnd returns where the string that begins at i ends; -1 when it does not.
func stringEnd(data []byte, i int) int {
	for from := i + 1; ; {
		quote := bytes.IndexByte(data[from:], '"')
		if quote < 0 {
			return -1
		}
		stop := from + quote
		escapes := stop
		for escapes > from && data[escapes-1] == '\\' {
			escapes--
		}
		if (stop-escapes)%2 == 0 {
			return stop + 1
		}
		from = stop + 1
	}
}
