package systemd

import (
	"context"
	"fmt"
	"slices"

	sd "github.com/coreos/go-systemd/v22/dbus"
)

// Settings are properties of a service that decide what its processes may do
// and as whom they run, in the form in which the service manager gave them.
type Settings struct{ properties []sd.Property }

// carriedSettings are the properties that have the same form when they are read
// and when a transient unit is made.
var carriedSettings = []string{
	"AmbientCapabilities", "CapabilityBoundingSet", "DynamicUser", "Group", "IgnoreSIGPIPE", "InaccessiblePaths",
	"LimitAS", "LimitCORE", "LimitCPU", "LimitDATA", "LimitFSIZE", "LimitMEMLOCK", "LimitNOFILE", "LimitNPROC", "LimitSTACK",
	"LockPersonality", "MemoryDenyWriteExecute", "NoExecPaths", "NoNewPrivileges", "PrivateDevices", "PrivateIPC",
	"PrivateMounts", "PrivateNetwork", "PrivateTmp", "PrivateUsers", "ProtectClock", "ProtectControlGroups",
	"ProtectHome", "ProtectHostname", "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables",
	"ProtectProc", "ProtectSystem", "ReadOnlyPaths", "ReadWritePaths", "RestrictRealtime", "RestrictSUIDSGID",
	"RootDirectory", "RootImage", "SupplementaryGroups", "UMask", "User",
}

// Settings reads those of a service whose value is not empty, for a command
// that has to meet what the service's own processes meet.
func (c *Client) Settings(ctx context.Context, unit string) (Settings, error) {
	var props map[string]any
	err := c.read(ctx, func(ctx context.Context, l *link) (err error) {
		props, err = l.GetAllPropertiesContext(ctx, unit)
		return err
	})
	if err != nil {
		return Settings{}, fmt.Errorf("read the settings of %s: %w", unit, err)
	}
	return settingsFrom(props), nil
}

func settingsFrom(props map[string]any) Settings {
	var s Settings
	for _, name := range carriedSettings {
		switch v := props[name].(type) {
		case string:
			// "no" is what the properties with several degrees are by default.
			if v == "" || v == "no" || (name == "ProtectProc" && v == "default") {
				continue
			}
		case bool:
			if !v {
				continue
			}
		case []string:
			if len(v) == 0 {
				continue
			}
		case uint32, uint64:
		default:
			continue
		}
		s.properties = append(s.properties, property(name, props[name]))
	}
	return s
}

// Names lists the settings that are carried.
func (s Settings) Names() []string {
	var names []string
	for _, p := range s.properties {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}
