del tensor
