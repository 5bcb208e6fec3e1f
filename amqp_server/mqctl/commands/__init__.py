"""The commands of mqctl, one file for each section of its help."""
