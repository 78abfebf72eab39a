"""Everything that a person sees of a run.

outcome.py   how a run stands, which all of these read
records.py   from the metrics of iterations to the rows that loggers are told
loggers/     who is told of every row: metrics.jsonl, TensorBoard, the live display
display.py   what the live display shows
plot.py      learning curves
surface.py   what a search measured
diagram.py   a plan as a picture, of the pieces in shapes.py
video.py     films
"""
