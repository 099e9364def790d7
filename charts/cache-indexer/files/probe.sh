#!/bin/sh
# What a server says of itself, asked as the user who may only PING and ROLE.
#   synced  it has all of its data: from its log, or from the server it follows
#   ready   it serves
#   alive   it answers, even if only that it is loading or busy
set -eu
cli=$(command -v valkey-cli || command -v redis-cli)
case $1 in
synced) "$cli" role | grep -qx -e master -e connected ;;
ready) [ "$("$cli" ping)" = PONG ] ;;
alive) "$cli" ping >/dev/null ;;
esac
