"""Encoding more images than one code file should hold: parts of parquet, by this process or by Ray on many machines."""
