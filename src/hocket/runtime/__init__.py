"""Carries a plan out."""
