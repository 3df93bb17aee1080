"""Tables: Parquet, Arrow and text, streamed; columns are the features."""
