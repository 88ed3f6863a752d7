"""LoRA adapters: checked files, a store by digest, and a pool of slots that rows of one batch choose from."""
