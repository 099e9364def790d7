#!/bin/bash
# The first process of the node's namespaces (network, mount, pid, uts, ipc, cgroup). Everything that it mounts
# and makes is seen only inside, and gone when it ends. $1: the node's directory.
set -eu
run=$1
mount --make-rprivate /
mount -t proc proc /proc

# cgroups: the v1 controllers, read-only, memory as far as we may see it. Without "unified": crun refuses the
# mixture of v1 and v2.
memory=$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup)
mkdir -p "$run/cgroup"
for path in /sys/fs/cgroup/*/; do
  name=$(basename "$path")
  case $name in unified | systemd) continue ;; memory) [ "$memory" = / ] || path=$path$memory ;; esac
  mkdir -p "$run/cgroup/$name"
  mount --bind "$path" "$run/cgroup/$name"
  mount -o remount,bind,ro "$run/cgroup/$name"
done
mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
for path in "$run"/cgroup/*/; do
  mkdir "/sys/fs/cgroup/$(basename "$path")"
  mount --move "$path" "/sys/fs/cgroup/$(basename "$path")"
done
mount -o remount,ro /sys/fs/cgroup

# Settings of the whole machine, as kubelet wants to find them: then it does not write the real ones.
mkdir -p "$run/sysctl"
while read -r key value; do
  file=$run/sysctl/${key##*/}
  echo "$value" >"$file"
  mount --bind "$file" "/proc/sys/$key"
done <<SETTINGS
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
SETTINGS

for path in /var/log /var/lib/kubelet /var/lib/cni; do
  mkdir -p "$run$path"
  mount --bind "$run$path" "$path"
done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/lock
mount --make-rshared /

# The node's address lies on a pair of interfaces that leads nowhere.
hostname node-1
ip link set lo up
ip link add node0 type veth peer name node0p
ip link set node0p up
ip addr add 10.250.0.1/24 dev node0
ip addr add 10.250.0.10/24 dev node0
ip link set node0 up
ip route add default via 10.250.0.1 dev node0
echo 1 >/proc/sys/net/ipv4/ip_forward

touch "$run/ready"
trap : TERM # only SIGKILL ends it, and everything with it
while :; do sleep 3600 & wait $! || :; done
