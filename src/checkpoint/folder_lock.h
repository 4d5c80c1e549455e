// Two jobs that save into one folder would take each other's sets away, and a restart would
// take up the wrong run.
#pragma once
#include <string>

namespace brigade::checkpoint {

// Claims the folder for this process, until the process ends or gives it back. Nothing
// happens if it has it already, or if the file system has no locks. Throws CheckpointError
// that names the process which has it.
void claim_folder(const std::string& folder);
// For a process that has it and is no longer the one that commits.
void give_back_folder(const std::string& folder);

}  // namespace brigade::checkpoint
