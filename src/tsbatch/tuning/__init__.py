"""Tuning: one knob at a time, measured beside what is there, kept only when it helped."""
