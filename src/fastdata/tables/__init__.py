"""Tables: columns of Parquet, Arrow, CSV or a DataFrame, stored as compact integers and floats."""
