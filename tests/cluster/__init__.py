"""Against a real Kubernetes API server, built from source by `make kube`."""
