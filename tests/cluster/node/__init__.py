"""A real Kubernetes node: kubelet, containerd, crun, kube-proxy and CoreDNS, built from source."""
