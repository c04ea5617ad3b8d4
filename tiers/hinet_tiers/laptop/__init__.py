"""Training on the laptop: adapters that are distilled from the cloud's teacher."""
