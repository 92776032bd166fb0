package assign

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"

	mesh "github.com/meshctl/mesh"
)

// The variables of an expression.
const (
	varName    = "name"
	varLabels  = "labels"
	varOS      = "os"
	varArch    = "arch"
	varProfile = "profile"
)

const (
	expressionLimit = 4 << 10
	// costLimit is far above any honest expression and a few milliseconds.
	costLimit = 100_000
)

// usage says which facts an expression or a template looks at.
type usage struct {
	name, labels, profile bool
}

func (u usage) and(o usage) usage {
	return usage{u.name || o.name, u.labels || o.labels, u.profile || o.profile}
}

type expression struct {
	text    string
	program cel.Program
	uses    usage
}

func newEnv() (*cel.Env, error) {
	profile, os := reflect.TypeFor[mesh.Profile](), reflect.TypeFor[mesh.OS]()
	env, err := cel.NewEnv(
		cel.Types(
			cel.NativeTypeFor[mesh.OS](types.ParseStructTag("json")),
			cel.NativeTypeFor[mesh.Disk](types.ParseStructTag("json")),
			cel.NativeTypeFor[mesh.Profile](types.ParseStructTag("json")),
		),
		cel.Variable(varName, cel.StringType),
		cel.Variable(varLabels, cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable(varOS, cel.ObjectType(os.String())),
		cel.Variable(varArch, cel.StringType),
		cel.Variable(varProfile, cel.ObjectType(profile.String())),
		cel.ParserExpressionSizeLimit(expressionLimit),
		cel.ParserRecursionLimit(64),
	)
	if err != nil {
		return nil, fmt.Errorf("set up expressions: %w", err)
	}
	return env, nil
}

// compileExpression checks the text against the types of the variables.
func (c *Compiler) compileExpression(text string) (*expression, error) {
	if len(text) > expressionLimit {
		return nil, fmt.Errorf("the expression has %d bytes; the limit is %d", len(text), expressionLimit)
	}
	checked, issues := c.env.Compile(text)
	if issues.Err() != nil {
		var found []string
		for _, e := range issues.Errors() {
			found = append(found, fmt.Sprintf("at character %d: %s", e.Location.Column()+1, e.Message))
		}
		return nil, errors.New("the expression is not valid, " + strings.Join(found, "; "))
	}
	if got := checked.OutputType(); !got.IsExactType(cel.BoolType) {
		return nil, fmt.Errorf("the expression gives a %s; it must give true or false", got)
	}
	program, err := c.env.Program(checked, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(costLimit))
	if err != nil {
		return nil, fmt.Errorf("the expression cannot be prepared: %w", err)
	}
	e := &expression{text: text, program: program}
	for _, node := range ast.MatchDescendants(ast.NavigateAST(checked.NativeRep()), ast.KindMatcher(ast.IdentKind)) {
		switch node.AsIdent() {
		case varName:
			e.uses.name = true
		case varLabels:
			e.uses.labels = true
		case varOS, varArch, varProfile:
			e.uses.profile = true
		}
	}
	return e, nil
}

// eval returns whether the expression holds for a node; a nil expression does.
func (e *expression) eval(f *Facts) (bool, error) {
	if e == nil {
		return true, nil
	}
	out, _, err := e.program.Eval(f.vars())
	if err != nil {
		return false, fmt.Errorf("%s: %w", e.text, err)
	}
	holds, ok := out.Value().(bool)
	if !ok {
		return false, fmt.Errorf("%s: gave no true or false", e.text)
	}
	return holds, nil
}
