"""What is done to retrieved nodes before they are read: another order, fewer words."""
