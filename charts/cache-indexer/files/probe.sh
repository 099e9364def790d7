#!/bin/sh
# What a server says of itself, asked as the user who may only PING and ROLE, and needs no password.
#   synced  it has all of its data: from its log, or from the server it follows
#   ready   it serves
#   alive   it answers, even if only that it is loading or busy
set -eu
cli=$(command -v valkey-cli || command -v redis-cli)
ask() { "$cli" --user probe --pass any --no-auth-warning "$@"; }
case $1 in
synced) ask role | grep -qx -e master -e connected ;;
ready) [ "$(ask ping)" = PONG ] ;;
alive) ask ping >/dev/null ;;
esac
