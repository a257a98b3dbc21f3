// Included by c10d, which uses nothing of it.
#pragma once
