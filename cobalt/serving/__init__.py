"""The judge and the engine as services: the two apps on Ray Serve, their guard, and the cluster with its check."""
