# shellcheck shell=sh
# accounts: the user of the control plane and the group of its operators.
accounts() {
	if command -v systemd-sysusers >/dev/null 2>&1; then
		systemd-sysusers mesh-control.conf || :
	fi
	if ! getent group mesh-admin >/dev/null 2>&1; then
		groupadd --system mesh-admin || :
	fi
	if ! getent passwd mesh-control >/dev/null 2>&1; then
		useradd --system --user-group --home-dir /var/lib/mesh-control --no-create-home \
			--shell /usr/sbin/nologin --comment "Mesh control plane" mesh-control || :
	fi
}
