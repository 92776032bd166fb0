#!/bin/sh
# Counts the starts of mesh-host and how each of them ended, on disk.
#
#   starts begin        before the host is started (ExecStartPre=)
#   starts stop PID     before it is stopped; PID is empty when it ended by itself (ExecStop=)
#   starts end          after it ended (ExecStopPost=, with SERVICE_RESULT, EXIT_CODE and EXIT_STATUS)
#
# Lines of /var/lib/mesh-host/starts, oldest first:
#   begin BOOT-ID UPTIME-SECONDS INSTALLED-VERSION
#   stop
#   end RESULT EXIT-CODE EXIT-STATUS
#
# A start without an end was cut off with the power or is running. A start with
# a "stop" before its end, or whose result is "success", did not fail.
#
# A stop that was asked for also clears the service manager's own count of starts,
# which would otherwise hold it against the host that somebody restarted it.
#
# MESH_ROLLBACK_ROOT is put before every path, and its bin/ before PATH; it is for
# tests only.
set -u
LC_ALL=C
PATH=/usr/sbin:/usr/bin:/sbin:/bin
root=${MESH_ROLLBACK_ROOT:-}
[ -z "$root" ] || PATH=$root/bin:$PATH
export LC_ALL PATH

file=$root/var/lib/mesh-host/starts
keep=200

line=
case ${1:-} in
begin)
	boot=
	read -r boot 2>/dev/null <"$root/proc/sys/kernel/random/boot_id" || :
	uptime=
	read -r uptime rest 2>/dev/null <"$root/proc/uptime" || :
	version=
	read -r version 2>/dev/null <"$root/usr/lib/mesh-host/version" || :
	line="begin ${boot:-unknown} ${uptime:-unknown} ${version:-unknown}"
	;;
stop)
	[ -n "${2:-}" ] || exit 0
	line=stop
	timeout 10 systemctl reset-failed mesh-host.service </dev/null || :
	;;
end)
	line="end ${SERVICE_RESULT:-unknown} ${EXIT_CODE:-unknown} ${EXIT_STATUS:-unknown}"
	;;
*)
	echo "usage: starts begin | stop [PID] | end" >&2
	exit 2
	;;
esac

if [ "$line" != stop ] && [ "$(wc -l 2>/dev/null <"$file" || echo 0)" -ge $((keep * 2)) ]; then
	tail -n "$keep" "$file" >"$file.new" && mv -f "$file.new" "$file"
fi
printf '%s\n' "$line" >>"$file" || exit 1
sync "$file" 2>/dev/null || :
