"""Building and flashing edge images. Nothing is here yet: the folder holds the part's place in the tree."""
