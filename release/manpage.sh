#!/usr/bin/env bash
# Prints fencelock(1), made of what the commands say of themselves:
#   release/manpage.sh FENCELOCK VERSION DATE
set -euo pipefail
program=$1
# roff escapes a text that is shown as it is.
roff() { sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^[.']/\\\\\&&/"; }
# section prints the help of a command, and of those below it.
section() {
	local help command
	help=$("$program" "$@" --help)
	[[ $# -eq 0 ]] || printf '.SS fencelock %s\n' "$*"
	printf '.nf\n%s\n.fi\n' "$(roff <<<"$help")"
	grep -q '^  fencelock.* COMMAND$' <<<"$help" || return 0
	for command in $(sed -n -e '/^Flags:/q' -e 's/^  \([a-z][a-z-]*\) .*/\1/p' <<<"$help"); do
		case $command in fencelock | help | completion) ;; *) section "$@" "$command" ;; esac
	done
}
printf '.TH FENCELOCK 1 "%s" "fencelock %s" "User Commands"\n' "$3" "$2"
printf '.SH NAME\nfencelock \\- a lock service with fencing tokens\n.SH DESCRIPTION\n'
page=$(section)
[[ $(grep -c '^\.SS' <<<"$page") -ge 30 ]] || { echo "$0: the commands are not found in what $program says" >&2; exit 1; }
printf '%s\n' "$page"
printf '.SH SEE ALSO\nhttps://github.com/fencelock/fencelock\n'
