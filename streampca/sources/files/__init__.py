"""Files that hold one array, images, and encodings of text files."""
