"""The demo: a whole household on one machine, from first words to an answer on the pocket."""
