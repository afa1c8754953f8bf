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
	for command in $(sed -n '/^Available Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p' <<<"$help"); do
		[[ $command == help || $command == completion ]] || section "$@" "$command"
	done
}
printf '.TH FENCELOCK 1 "%s" "fencelock %s" "User Commands"\n' "$3" "$2"
printf '.SH NAME\nfencelock \\- a lock service with fencing tokens\n.SH DESCRIPTION\n'
section
printf '.SH SEE ALSO\nhttps://github.com/fencelock/fencelock\n'
