"""The embedded default: a fleet on this machine, whose pods are processes and whose objects are files."""
