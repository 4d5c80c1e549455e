// Makes sure that what a command prints arrives.
#pragma once

namespace brigade::tool {

// Called before anything is opened: a closed descriptor 0, 1 or 2 would be given to the
// next file or connection, and output would go there.
void occupy_standard_streams();

// Flushes stdout. Throws Error if this, or anything printed before, could not be written:
// the disk is full, or stdout is closed.
void check_standard_output();

}  // namespace brigade::tool
