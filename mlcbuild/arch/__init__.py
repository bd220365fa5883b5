"""Model architectures, one folder each, named after Hugging Face's model_type."""
