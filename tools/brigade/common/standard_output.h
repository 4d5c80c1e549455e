// Whether what a command has printed has arrived.
#pragma once

namespace brigade::tool {

// Before anything is opened: a descriptor 0, 1 or 2 that is closed would be given to the
// next file or connection, and what is printed would go there.
void occupy_standard_streams();

// Writes what is still held back. Throws Error if this, or anything printed to stdout
// before, could not be written: a full disk, a closed stdout.
void check_standard_output();

}  // namespace brigade::tool
