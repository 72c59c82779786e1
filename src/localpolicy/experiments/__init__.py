"""What is built from all the layers below: the demo, lists for files of histories."""
