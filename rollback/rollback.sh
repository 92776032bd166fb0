#!/bin/sh
# Puts the confirmed version of mesh-host back when the installed version cannot
# run. Needs no program of the mesh, no network and no repository: only the kit
# that was made when a version was confirmed.
#
#   rollback on-failure    called by mesh-host-rollback.service (OnFailure=)
#   rollback guard         called by the guard, which also acts when the unit is
#                          gone, unreadable, or dead without anybody's wish, and
#                          when the version that is not confirmed was started
#                          three times within more than a minute and never lived
#
# Reads   /var/lib/mesh-host/kit/confirmed     one line: the confirmed version, as the package database writes it
#         /var/lib/mesh-host/kit/package.deb   or package.rpm: that version's package
#         /var/lib/mesh-host/kit/SHA256SUMS    the sums of package and script
#         /var/lib/mesh-host/starts            see the script "starts"
# Writes  /var/lib/mesh-host/rollback/attempt  made once, before acting; its presence forbids a second
#                                              attempt; whoever confirms a version removes it
#         /var/lib/mesh-host/rollback/last     what the latest run found and did
#         /var/lib/mesh-host/rollback/install.log, journal
#         /var/lib/mesh-host/rollback/lock     held by the run that acts, for as long as it lives
# Both records are lines of KEY=VALUE: outcome, caller, from, to, from-binary,
# when, boot, cuts, step, result, why. Outcomes:
#   put-back              the confirmed version is installed and runs
#   put-back-not-running  it is installed and does not run
#   failed                it could not be installed; step and why say more
#   started               the attempt was begun and not ended: it goes on, or was cut off
#   machine               the installed version is the confirmed one: the machine is the problem
#   once                  there was an attempt already since the last confirmation
#   no-way-back           there is no kit, or it is damaged
#   locked                the package manager stayed locked; the attempt is not used up
#   not-failed            the host is not dead, or somebody asked for the stop
#   unknown               the service manager did not say how the host is
# Exit status: 0 when the host runs or was not to run, 1 otherwise.
#
# For tests only: MESH_ROLLBACK_ROOT is put before every path and its bin/ before
# PATH; MESH_ROLLBACK_LOCK_WAIT, MESH_ROLLBACK_RUN_LIMIT and MESH_ROLLBACK_PAUSE
# set, in seconds, how long to wait for the lock, for the package manager, and
# between two looks.
set -u
umask 077
LC_ALL=C
PATH=/usr/sbin:/usr/bin:/sbin:/bin
root=${MESH_ROLLBACK_ROOT:-}
[ -z "$root" ] || PATH=$root/bin:$PATH
export LC_ALL PATH

caller=${1:-on-failure}
package=mesh-host
unit=mesh-host.service
state=$root/var/lib/mesh-host
kit=$state/kit
records=$state/rollback
lock_wait=${MESH_ROLLBACK_LOCK_WAIT:-1800}
run_limit=${MESH_ROLLBACK_RUN_LIMIT:-1800}
look_again=${MESH_ROLLBACK_PAUSE:-5}
failures_enough=3
failing_since=60
lived_long=300
cuts_enough=3

installed=unknown
confirmed=none
binary=unknown
unit_result=unknown
step=look
family=
cuts=0
boot=
read -r boot 2>/dev/null <"$root/proc/sys/kernel/random/boot_id" || :
boot=${boot:-unknown}

say() { printf '%s\n' "mesh-host rollback: $*"; }

# clean TEXT: one line without control characters.
clean() { printf '%s' "$1" | tr '\000-\037\177' ' ' | cut -c 1-1000; }

# durable FILE...: on disk when this returns, as far as the tools allow.
durable() { sync "$@" 2>/dev/null || sync; }

# write_record FILE OUTCOME WHY
write_record() {
	{
		printf 'outcome=%s\n' "$2"
		printf 'caller=%s\n' "$(clean "$caller")"
		printf 'from=%s\n' "$(clean "$installed")"
		printf 'to=%s\n' "$(clean "$confirmed")"
		printf 'from-binary=%s\n' "$(clean "$binary")"
		printf 'when=%s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
		printf 'boot=%s\n' "$(clean "$boot")"
		printf 'cuts=%s\n' "$cuts"
		printf 'step=%s\n' "$step"
		printf 'result=%s\n' "$(clean "$unit_result")"
		printf 'why=%s\n' "$(clean "$3")"
	} >"$1" && durable "$1"
}

# record FILE OUTCOME WHY: in the place of what was recorded there.
record() {
	write_record "$1.new" "$2" "$3" && mv -f "$1.new" "$1" && durable "$records"
}

# leave STATUS OUTCOME WHY: the end of a run that attempted nothing.
leave() {
	say "$2: $3"
	record "$records/last" "$2" "$3" || say "cannot write $records/last"
	exit "$1"
}

# conclude STATUS OUTCOME WHY: the end of the one attempt.
conclude() {
	record "$records/attempt" "$2" "$3" || say "cannot write $records/attempt"
	rm -f "$records"/attempt.[0-9]*
	leave "$1" "$2" "$3"
}

# attempted KEY: what the record of the attempt says.
attempted() { sed -n "s/^$1=//p" "$records/attempt" 2>/dev/null | head -n 1; }

# alone: no other run acts, and none will while this one lives. Whoever is killed
# or loses its power lets go.
alone() {
	(: >>"$records/lock") 2>/dev/null && exec 9>>"$records/lock" && flock -n 9 2>/dev/null
}

# was_cut_off: the attempt was begun and not ended, and whoever began it is at
# work no more. That is no second attempt.
was_cut_off() {
	[ "$(attempted outcome)" = started ] || return 1
	case $(attempted cuts) in
	'' | *[!0-9]*) return 1 ;;
	esac
	[ "$(attempted cuts)" -lt "$cuts_enough" ] || return 1
	# The run that began it may have ended just now.
	alone && [ "$(attempted outcome)" = started ]
}

# bounded SECONDS COMMAND...: ends a command that hangs.
bounded() {
	bounded_limit=$1
	shift
	if command -v timeout >/dev/null 2>&1; then
		timeout -k 10 "$bounded_limit" "$@"
	else
		"$@"
	fi
}

# property NAME: what the service manager says about the unit; empty when it says nothing.
property() {
	bounded 60 systemctl show "$unit" -p "$1" 2>/dev/null </dev/null | sed -n "s/^$1=//p" | head -n 1
}

# look_at_unit: sets verdict to dead, alive or unknown, and finding to the reason.
look_at_unit() {
	load=$(property LoadState)
	active=$(property ActiveState)
	unit_result=$(property Result)
	finding="load state ${load:-?}, active state ${active:-?}, result ${unit_result:-?}"
	case $active in
	failed) verdict=dead ;;
	active | activating | reloading | deactivating | maintenance | refreshing) verdict=alive ;;
	inactive)
		# A failed dependency calls OnFailure= too, and leaves the unit inactive.
		verdict=alive
		[ "$caller" != guard ] || verdict=dead
		;;
	*) verdict=unknown ;;
	esac
	unit_result=${unit_result:-unknown}
}

# keeps_failing: the version that is installed was started again and again and
# ended badly each time. The service manager forgets its own count at every
# reload before version 255 and at every boot, and a slow failure never reaches
# it. A fast one is left to it: the first failure must lie a minute back. Sets
# finding.
keeps_failing() {
	[ -r "$state/starts" ] || return 1
	now_boot=
	read -r now_boot 2>/dev/null <"$root/proc/sys/kernel/random/boot_id" || return 1
	now_up=
	read -r now_up rest 2>/dev/null <"$root/proc/uptime" || return 1
	now_up=${now_up%%.*}
	failures=0
	of=
	asked=no
	running=no
	first_boot=
	first_up=0
	while read -r word one two three; do
		case $word in
		begin)
			asked=no
			running=yes
			last_boot=$one
			last_up=${two%%.*}
			[ "$of" = "$three" ] || failures=0
			of=$three
			;;
		stop) asked=yes ;;
		end)
			if [ "$running" = yes ] && [ "$asked" = no ] && [ "$one" != success ]; then
				if [ "$failures" -eq 0 ]; then
					first_boot=$last_boot
					first_up=$last_up
				fi
				failures=$((failures + 1))
			fi
			running=no
			;;
		esac
	done <"$state/starts"
	[ "$of" = "$installed" ] && [ "$failures" -ge "$failures_enough" ] || return 1
	if [ "$first_boot" = "$now_boot" ]; then
		case $first_up$now_up in *[!0-9]*) return 1 ;; esac
		[ $((now_up - first_up)) -ge "$failing_since" ] || return 1
	fi
	if [ "$running" = yes ] && [ "$last_boot" = "$now_boot" ]; then
		case $last_up in *[!0-9]*) return 1 ;; esac
		[ $((now_up - last_up)) -lt "$lived_long" ] || return 1
	fi
	finding="$failures starts of version $installed failed one after another; $finding"
}

# judge: looks at the unit, and for the guard at the starts too. Sets verdict,
# finding, and how the host is started in the end.
judge() {
	look_at_unit
	verb=start
	if [ "$caller" = guard ] && [ "$verdict" = alive ] && [ "$installed" != "$confirmed" ] && keeps_failing; then
		verdict=dead
		verb=restart
	fi
}

# stop_was_asked: the latest start ended by request, or the machine is going down.
stop_was_asked() {
	[ "$(bounded 60 systemctl is-system-running 2>/dev/null </dev/null)" != stopping ] || return 0
	[ -r "$state/starts" ] || return 1
	asked=no
	while read -r word rest; do
		case $word in
		begin) asked=no ;;
		stop) asked=yes ;;
		esac
	done <"$state/starts"
	[ "$asked" = yes ]
}

# look_at_package: sets installed to the version, and intact to yes when the
# package database holds exactly that one, completely installed.
look_at_package() {
	intact=no
	case $family in
	deb)
		# shellcheck disable=SC2016 # dpkg-query expands it
		found=$(bounded 60 dpkg-query -W -f='${db:Status-Abbrev}|${Version}\n' "$package" 2>/dev/null </dev/null)
		installed=${found#*|}
		case $found in ii*) intact=yes ;; esac
		;;
	rpm)
		installed=$(bounded 60 rpm -q --qf '%{VERSION}-%{RELEASE}\n' "$package" 2>/dev/null </dev/null) && intact=yes
		;;
	esac
	installed=${installed:-unknown}
}

# files_differ: the package manager's own comparison finds the program changed.
files_differ() {
	case $family in
	deb) changed=$(bounded 300 dpkg --verify "$package" 2>&1 </dev/null) ;;
	rpm) changed=$(bounded 300 rpm -V --nodeps --noscripts "$package" 2>&1 </dev/null) ;;
	esac
	case $changed in *"/usr/bin/mesh-host"*) return 0 ;; esac
	return 1
}

# lock_files: the locks that the package manager would refuse to run without.
lock_files() {
	case $family in
	deb) printf '%s\n' "$root/var/lib/dpkg/lock-frontend" "$root/var/lib/dpkg/lock" ;;
	rpm)
		printf '%s\n' "$root/var/lib/rpm/.rpm.lock" "$root/usr/lib/sysimage/rpm/.rpm.lock"
		;;
	esac
}

# locked: some process holds one of the lock files. dpkg and rpm use POSIX
# record locks, which /proc/locks lists by inode; the holder must also have that
# very file open, because an inode number alone is not unique on a machine.
locked() {
	for lock in $(lock_files); do
		[ -e "$lock" ] || continue
		inode=$(stat -c %i "$lock" 2>/dev/null) || continue
		same=$(stat -c %d:%i "$lock" 2>/dev/null) || continue
		# shellcheck disable=SC2013 # the pattern leaves one number on each line
		for pid in $(sed -n "s/^[0-9]*: POSIX  *ADVISORY  *WRITE  *\\([0-9]*\\) [^ ]*:$inode .*/\\1/p" /proc/locks 2>/dev/null); do
			for fd in /proc/"$pid"/fd/*; do
				[ "$(stat -L -c %d:%i "$fd" 2>/dev/null)" != "$same" ] || return 0
			done
		done
	done
	return 1
}

# await_lock: waits until no lock is held; false when that took too long.
await_lock() {
	waited=0
	while locked; do
		[ "$waited" -lt "$lock_wait" ] || return 1
		[ "$waited" -gt 0 ] || say "waiting for the package manager's lock"
		sleep "$look_again"
		waited=$((waited + look_again))
	done
}

install_kit() (
	umask 022
	case $family in
	deb)
		DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 bounded "$run_limit" \
			dpkg --force-confold --force-confdef --force-downgrade -i "$kit/package.deb"
		;;
	rpm)
		bounded "$run_limit" \
			rpm -U --oldpackage --replacepkgs --replacefiles --nodeps "$kit/package.rpm"
		;;
	esac </dev/null >"$records/install.log" 2>&1
)

case $caller in
on-failure | guard) ;;
*)
	echo "usage: rollback on-failure | guard" >&2
	exit 2
	;;
esac

mkdir -p "$records" || say "cannot make $records"

# What is there, and what was confirmed?
[ ! -r "$kit/confirmed" ] || read -r confirmed <"$kit/confirmed" || :
if [ -f "$kit/package.deb" ]; then
	family=deb
elif [ -f "$kit/package.rpm" ]; then
	family=rpm
fi
look_at_package

# Is the host dead, and against everybody's wish?
judge
case $verdict in
alive) leave 0 not-failed "nothing is done: $finding" ;;
unknown) leave 1 unknown "nothing is done, because the service manager does not say how $unit is: $finding" ;;
esac
if stop_was_asked; then
	leave 0 not-failed "nothing is done: the stop was asked for ($finding)"
fi

# Is there something to put back?
step=kit
if [ -z "$family" ] || [ -z "$confirmed" ] || [ "$confirmed" = none ]; then
	leave 1 no-way-back "no version was confirmed on this machine yet, so there is none to put back; the machine itself is left as it is ($finding)"
fi
binary=$(sha256sum "$root/usr/bin/mesh-host" 2>/dev/null | cut -d ' ' -f 1)
binary=${binary:-unknown}
going_on=no
if was_cut_off; then
	going_on=yes
elif [ "$installed" = "$confirmed" ] && [ "$intact" = yes ]; then
	leave 1 machine "version $installed is the confirmed one, so the machine is the problem; it is left reachable ($finding)"
elif [ -e "$records/attempt" ]; then
	leave 1 once "version $confirmed was put back once already since it was confirmed, or is being put back; the machine is left reachable ($finding)"
fi
if ! (cd "$kit" && [ -s SHA256SUMS ] && grep -q " [ *]package.$family\$" SHA256SUMS && sha256sum -c SHA256SUMS) >"$records/sums.log" 2>&1; then
	leave 1 no-way-back "the kit in $kit is damaged: $(grep -v ': OK$' "$records/sums.log" | head -n 3)"
fi

# Act, once.
step=lock
if ! await_lock; then
	leave 1 locked "the package manager was locked for $lock_wait seconds; the next call tries again"
fi
judge
if [ "$verdict" != dead ]; then
	leave 0 not-failed "somebody started the host meanwhile: $finding"
fi
step=record
why="$finding"
if [ "$going_on" = yes ]; then
	# Whatever the half installation says, it is that version which is undone.
	cuts=$(($(attempted cuts) + 1))
	installed=$(attempted from)
	binary=$(attempted from-binary)
	why=$(attempted why)
	record "$records/attempt" started "$why" || leave 1 failed "cannot write $records/attempt"
	say "an earlier run was cut off while it put version $confirmed back; it is gone on with"
else
	# The script runs as two services. Where flock is missing nobody can tell that
	# a run was cut off, so nobody goes on with one.
	if command -v flock >/dev/null 2>&1 && ! alone; then
		leave 1 once "another run of this script is putting version $confirmed back, or $records/lock cannot be written"
	fi
	# A link is made whole or not at all, and never over what is there.
	if ! write_record "$records/attempt.$$" started "$why" || ! ln "$records/attempt.$$" "$records/attempt" 2>/dev/null; then
		rm -f "$records/attempt.$$"
		if [ -e "$records/attempt" ]; then
			leave 1 once "another run of this script is putting version $confirmed back"
		fi
		leave 1 failed "cannot write $records/attempt, and without it a second attempt could not be prevented"
	fi
	rm -f "$records/attempt.$$"
	durable "$records"
fi
journalctl -n 30 -o cat --no-pager "_SYSTEMD_UNIT=$unit" >"$records/journal" 2>/dev/null </dev/null || :

step=install
say "putting version $confirmed back in place of $installed ($finding)"
# What the package manager leaves running must not hold the lock.
install_kit 9>&-
status=$?
waited=0
while [ "$status" -ne 0 ] && locked && [ "$waited" -lt "$lock_wait" ]; do
	# Somebody took the lock between the look and the install.
	await_lock || break
	waited=$((waited + look_again))
	install_kit 9>&-
	status=$?
done
cat "$records/install.log" 2>/dev/null || :

step=read-back
from=$installed
look_at_package
now=$installed
now_intact=$intact
installed=$from
if [ "$now" != "$confirmed" ] || [ "$now_intact" != yes ]; then
	conclude 1 failed "the package manager ended with status $status and the package database says $now; the host was dead with $why; $(tail -n 3 "$records/install.log" 2>/dev/null)"
fi
if files_differ; then
	conclude 1 failed "the package database says $now, but the program on disk is not that version's; the host was dead with $why"
fi

step=start
bounded 120 systemctl daemon-reload </dev/null || say "systemctl daemon-reload ended with status $?"
bounded 60 systemctl reset-failed "$unit" </dev/null || say "systemctl reset-failed ended with status $?"
bounded 300 systemctl "$verb" "$unit" </dev/null || say "systemctl $verb ended with status $?"
before=$unit_result
look_at_unit
unit_result=$before
if [ "$active" != active ]; then
	conclude 1 put-back-not-running "version $confirmed is installed again and does not run: $finding; version $from was dead with $why"
fi
step=finished
conclude 0 put-back "version $from did not run: $why"
