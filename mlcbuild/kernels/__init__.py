"""TIR kernel builders, one package per device family."""
