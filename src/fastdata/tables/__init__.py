"""Tables: columns of Parquet, CSV or a DataFrame become compact integers and floats."""
