package api

import "github.com/meshctl/mesh/control"

// needed says which role each call needs. It is the one place that does; which
// declarations and packages a publisher may write is control.Limits.
var needed = map[string]control.Role{
	"GET /v1/health":                       control.RoleReader,
	"POST /v1/tokens":                      control.RoleAdmin,
	"GET /v1/tokens":                       control.RoleReader,
	"DELETE /v1/tokens/{id}":               control.RoleAdmin,
	"GET /v1/declarations":                 control.RoleReader,
	"GET /v1/declarations/{name}":          control.RoleReader,
	"PUT /v1/declarations/{name}":          control.RolePublisher,
	"DELETE /v1/declarations/{name}":       control.RolePublisher,
	"GET /v1/declarations/{name}/progress": control.RoleReader,
	"GET /v1/nodes":                        control.RoleReader,
	"GET /v1/nodes/{name}":                 control.RoleReader,
	"POST /v1/nodes/{name}/revoke":         control.RoleAdmin,
	"GET /v1/audit":                        control.RoleReader,
	"POST /v1/blobs/missing":               control.RolePublisher,
	"PUT /v1/blobs/{sha256}":               control.RolePublisher,
	"GET /v1/operators":                    control.RoleReader,
	"POST /v1/operators":                   control.RoleAdmin,
	"DELETE /v1/operators/{name}":          control.RoleAdmin,
	"GET /v1/packages":                     control.RoleReader,
	"POST /v1/packages":                    control.RolePublisher,
	"GET /v1/suites":                       control.RoleReader,
	"GET /v1/packages/{name}":              control.RoleReader,
	"POST /v1/packages/remove":             control.RolePublisher,
	"POST /v1/packages/promote":            control.RolePublisher,
	"GET /v1/repository":                   control.RoleReader,
	"GET /v1/repository/key":               control.RoleReader,
	"POST /v1/repository/key/rotate":       control.RoleAdmin,
	"POST /v1/repository/key/finish":       control.RoleAdmin,
	"GET /v1/repository/key/private":       control.RoleAdmin,
	"GET /v1/declarations/{name}/history":  control.RoleReader,
	"GET /v1/declarations/{name}/compare":  control.RoleReader,
	"POST /v1/declarations/{name}/revert":  control.RolePublisher,
	"GET /v1/events":                       control.RoleReader,
	"POST /v1/nodes/{name}/retire":         control.RoleAdmin,
	"DELETE /v1/nodes/{name}/retire":       control.RoleAdmin,
	"POST /v1/nodes/{name}/labels":         control.RoleAdmin,
	"POST /v1/nodes/{name}/recover":        control.RoleAdmin,
}

// roleFor returns the role that a call needs. One that the table forgot is for
// admins alone.
func roleFor(pattern string) control.Role {
	if role, listed := needed[pattern]; listed {
		return role
	}
	return control.RoleAdmin
}
