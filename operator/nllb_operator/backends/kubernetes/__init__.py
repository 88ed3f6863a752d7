"""Fleets on a Kubernetes API server: its client, a cache of what it says, and the Backend on top of both."""
