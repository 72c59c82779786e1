"""What every room needs of the machine: files, folders, frames."""
