#!/bin/sh
# Runs every check that needs no test run, says of each what it looked at and
# what came of it, and fails when one did. All are run, so that one finding
# does not hide another. It changes no file.
#
# Usage: check.sh   (at the top of the repository)
set -u

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=
steps=0

# step NAME WHAT COMMAND... runs one check.
step() {
	name=$1
	what=$2
	shift 2
	steps=$((steps + 1))
	if "$@" >"$work/out" 2>&1; then
		printf 'ok    %-14s %s\n' "$name" "$what"
	else
		failed="$failed $name"
		printf 'FAIL  %-14s %s\n' "$name" "$what"
		sed 's/^/      /' "$work/out"
	fi
}

# sources lists what belongs to the repository: known to git, or new and not
# ignored. Outside a git tree it is every file but the build's own.
sources() {
	if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
		git ls-files --cached --others --exclude-standard
	else
		find . -path ./out -prune -o -type f -print
	fi | while IFS= read -r file; do
		if [ -f "$file" ]; then
			printf '%s\n' "$file"
		fi
	done
}

# shells lists the shell scripts: by name, or by their first line.
shells() {
	while IFS= read -r file; do
		case "$file" in
		*.sh)
			printf '%s\n' "$file"
			continue
			;;
		*.go | *.md | *.txtar | *.json | *.yaml) continue ;;
		esac
		if head -c 64 "$file" | head -n 1 | grep -aqE '^#! ?(/usr)?/bin/(env )?(sh|bash|dash)( |$)'; then
			printf '%s\n' "$file"
		fi
	done
}

formatted() {
	xargs gofmt -l <"$work/go" >"$work/unformatted" || return 1
	if [ -s "$work/unformatted" ]; then
		echo "not formatted; run gofmt -w on:"
		cat "$work/unformatted"
		return 1
	fi
}

shellchecked() {
	xargs shellcheck <"$work/shell"
}

sources >"$work/all"
grep '\.go$' "$work/all" >"$work/go"
shells <"$work/all" >"$work/shell"
packages="$(go list ./... | wc -l) packages"

step gofmt "$(wc -l <"$work/go") files" formatted
step vet "$packages" go vet ./...
step vet-fault "$packages with -tags fault" go vet -tags fault ./...
step vet-matrix "$packages with -tags matrix" go vet -tags matrix ./...
step vet-pid1 "$packages with -tags pid1" go vet -tags pid1 ./...
step staticcheck "$packages" go tool staticcheck ./...
step shellcheck "$(wc -l <"$work/shell") scripts" shellchecked
step layering "test/arch over the whole tree" go test -count=1 ./test/arch
step records "$(go run ./internal/tool/records 2>/dev/null)" go run ./internal/tool/records
step requirements "$(go run ./internal/tool/requirements -check 2>/dev/null)" go run ./internal/tool/requirements -check
step cases "$(go run ./internal/tool/cases -check 2>/dev/null)" go run ./internal/tool/cases -check

if [ -n "$failed" ]; then
	echo "check: failed:$failed"
	exit 1
fi
echo "check: all $steps passed"
