"""Everything that a person sees of a run.

outcome.py   the progress and results of a run, which displays and loggers read
records.py   turns the metrics of iterations into rows for loggers
loggers/     where rows go: metrics.jsonl, TensorBoard, the live display
display.py   the contents of the live display
plot.py      learning curves
surface.py   the results of a search for the best slices
diagram.py   a plan as a picture, made of the pieces in shapes.py
video.py     video files
"""
