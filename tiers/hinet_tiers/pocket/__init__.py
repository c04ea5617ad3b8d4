"""The pocket tier: 4-bit serving with llama.cpp and adapters that are swapped while it runs."""
