// TVM's helpers for text: the sources that are used here include them and call none.
#pragma once
