#!/bin/sh
# Starts Valkey or Redis with the users of users.acl. Pod 0 is the primary, the others follow it.
# In the environment: CONFIG (where this file lies), PASSWORDS (a file for each user), RUN (writable, in
# memory), DATA, POD_NAME; and PRIMARY, the host name to follow, where there are replicas.
set -eu
umask 077

# The server wants digests, so the passwords of its users stand in no file but the Secret's.
cp "$CONFIG/users.acl" "$RUN/users.acl"
for user in collector query replica; do
  if [ -f "$PASSWORDS/$user" ]; then
    digest=$(printf %s "$(cat "$PASSWORDS/$user")" | sha256sum | cut -d ' ' -f 1)
    sed -i "s/sha256-of-$user/$digest/" "$RUN/users.acl"
  else
    sed -i "/^user $user /d" "$RUN/users.acl"
  fi
done

cp "$CONFIG/redis.conf" "$RUN/redis.conf"
if [ -n "${PRIMARY:-}" ] && [ "${POD_NAME##*-}" != 0 ]; then
  # By its own name, not an address: the primary's address changes when it moves.
  cat >>"$RUN/redis.conf" <<EOF
replicaof $PRIMARY 6379
masteruser replica
masterauth "$(sed 's/[\\"]/\\&/g' "$PASSWORDS/replica")"
EOF
fi

server=$(command -v valkey-server || command -v redis-server)
exec "$server" "$RUN/redis.conf" --dir "$DATA" --aclfile "$RUN/users.acl"
