"""The paper's two recipes: every other room's components composed."""
