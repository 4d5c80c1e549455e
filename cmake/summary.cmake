# configure summary
