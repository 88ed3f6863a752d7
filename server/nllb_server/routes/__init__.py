"""One module per family of routes. A handler parses, asks the pod, and shapes the reply; nothing more."""
