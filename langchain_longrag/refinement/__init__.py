"""What is done to retrieved documents before they are read: another order, fewer words."""
