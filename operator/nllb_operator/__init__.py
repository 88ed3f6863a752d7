"""The Kubernetes operator: reconciles NllbDeployment and LoraAdapter. Docstring only, so that importing one
module never drags in another."""
