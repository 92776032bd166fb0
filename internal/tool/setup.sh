#!/bin/sh
# Installs with apt-get what building and testing needs and this machine lacks.
# Installs nothing when all of it is there. It sets up no lab root and no
# service.
#
# Usage: setup.sh check|build|test|bench
set -eu

check='gcc libc6-dev binutils git shellcheck'
build="$check gcc-aarch64-linux-gnu libc6-dev-arm64-cross xz-utils zstd"
test="$build acl apt-utils attr bash busybox createrepo-c curl dash dbus dnf dpkg-dev e2fsprogs gpgv
	dnf-plugins-core sqlite3 iproute2 lintian mmdebstrap procps rpm rpmlint systemd systemd-container util-linux"
bench="$build aptly apt-utils createrepo-c gpg reprepro time ansible-core cfengine3 puppet-agent"

case "${1:-}" in
check) wanted=$check ;;
build) wanted=$build ;;
test) wanted=$test ;;
bench) wanted=$bench ;;
*)
	echo "usage: $0 check|build|test|bench" >&2
	exit 2
	;;
esac

if ! command -v go >/dev/null; then
	echo "setup: the go command is not on PATH; install Go (go.mod says which) and run this again" >&2
	exit 1
fi
if ! command -v dpkg-query >/dev/null; then
	echo "setup: this machine has no dpkg, so nothing can be installed for you. Needed, by their Debian names:" >&2
	echo "$wanted" >&2
	exit 1
fi

missing=
for package in $wanted; do
	state=$(dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null) || state=
	case "$state" in
	installed*) ;;
	*) missing="$missing $package" ;;
	esac
done
if [ -z "$missing" ]; then
	exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "setup: not root, so these cannot be installed:$missing" >&2
	echo "setup: run as root: apt-get install$missing" >&2
	exit 1
fi

echo "setup: installing$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# shellcheck disable=SC2086 # a list of names
apt-get install -q -y --no-install-recommends $missing
