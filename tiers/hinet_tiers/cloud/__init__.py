"""Training on the strongest machine: full fine-tuning, the cut of its task vector, the re-fit of what was kept."""
